"""What the book's pages import beside `rr`: figures, explorables and labs. In no wheel."""
