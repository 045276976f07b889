"""The live network: a trained Review net that runs in the page, every gate in the reader's hand."""

from collections.abc import Mapping
from html import escape

from . import kit

SENTENCE = "There was once, in a town by the sea, a"
SAMPLES = ("The old woodcutter had a daughter who", "Once a fox met a crow, and said")
PICKS = 6  # candidates for the next piece
CHANNELS = 8  # shown at a time
GATES = {"closed": "closed, r = 0", "learned": "as learned", "half": "one half", "open": "open"}


def live_network(net: Mapping) -> kit.Explorable:
    """Explorable: the reader's sentence through a trained net, its gates closed, half or open.

    net: as `rrbook.net.net_of` makes it, or read from the file that `python -m rrbook.net` writes.
    """
    # live.css names the figure's class before its name: another figure's kit.css may follow it
    below = (
        f"<style>{kit.style('live.css')}</style>"
        '<div class="rr-picks" role="group" aria-label="add the next piece">'
        + '<button type="button">+</button>' * PICKS
        + '</div><table class="rr-numbers"><caption></caption><thead><tr>'
        + "".join(
            f"<th scope='col'>{name}</th>" for name in ("channel", "h", "u", "r", "h + r ⊙ u")
        )
        + "</tr></thead><tbody></tbody></table>"
        "<details><summary>The columns of the table; a net of yours</summary>"
        "h is what the stream holds, u what the sublayer computes, r how much of it passes; the "
        "last column is what the stream holds then. "
        "<code>python -m rrbook.net RUN FILE.json</code> writes a run of yours as a file. "
        "<label>Load it "
        "<input type='file' accept='.json'></label></details>"
    )
    return kit.explorable(
        "live-network",
        script="live.js",
        shared=["net.js"],
        title="A trained network, live",
        lead="It runs in this page and has read only fables. Set its gates, and watch what it "
        "says.",
        controls=[
            f'<label>your sentence<input type="text" name="sentence" value="'
            f'{escape(SENTENCE)}" maxlength="600" spellcheck="false"></label>',
            '<div class="rr-samples" role="group" aria-label="sentences to try">'
            + "".join(f'<button type="button" value="{text}">{text} …</button>' for text in SAMPLES)
            + "</div>",
            kit.choice("place", "sublayer", {}, ""),  # the script names those of the net
            kit.radios(
                "scope", "which gates", {"one": "this sublayer", "all": "all sublayers"}, "all"
            ),
            kit.radios("gate", "set to", GATES, "learned"),
            # from the last piece, 0, back to the first: left to right as in the sentence
            kit.slider("word", "piece to look at", -9, 0, 1, 0),
            kit.slider(
                "channel", "first channel", 1, net["shape"]["d_model"] - CHANNELS + 1, CHANNELS, 1
            ),
        ],
        picture="Bars: the chance of each of the likeliest next pieces, with the gates as set and, "
        "below it in light blue, with the gates as learned",
        note="A piece is a word or a part of one; ␣ is a blank before it. What the net has never "
        "read it takes in small parts, and makes little of.",
        data=dict(net),
        below=below,
    )
