"""Labs: ipywidgets over the real `rr`; the page shows the state in which each was recorded."""
