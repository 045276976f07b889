"""All rules on one page: a small card for each, which three questions filter.

What a rule reads, keeps and writes is measured (`rrbook.anatomy`), not declared. Without
scripts the page shows every card.
"""

from rr.residual import Site, resolve
from rr.residual.table import describe
from rr.specs import ModelConfig
from rrbook.anatomy import FAMILIES, anatomy

from . import gallery, kit

KINDS = {"residual": "Residual rules", "values": "Value rules"}
ANY = {"": "anything"}
READS = {"stream": "the stream", "earlier": "earlier depths as well", "streams": "several streams"}
KEEPS = {
    "all": "all of the stream",
    "scaled": "a scaled part of it",
    "mixed": "a mix of streams",
    "erased": "all but one direction",
    "apart": "every update apart",
}
WRITES = {
    "whole": "the whole update",
    "number": "a number times it",
    "gate": "a gate times it",
    "part": "a part of it",
    "spread": "it to every stream",
}


def shrinks(row: dict) -> bool:
    """Whether a residual rule's coefficient at the start is another one in a deeper network."""
    if row["kind"] != "residual":
        return False
    cls, options = resolve(row["name"])
    config = ModelConfig(64, n_layer=4, n_head=2, d_model=16, d_ff=64)
    sites = [Site("attn", 3, blocks, config.d_model, n_head=2) for blocks in (12, 48)]
    shallow, deep = [cls(site, config, **options).coefficient(site) for site in sites]
    return shallow != deep


def answers(row: dict, facts: dict) -> dict[str, str]:
    """What a rule reads, keeps and writes, as keys of the tables above: its row, its `anatomy`."""
    if facts["family"] == "values":
        return {"reads": "earlier" if facts["blocks"] else "stream", "keeps": "all",
                "writes": "whole"}  # fmt: skip
    if facts["streams"] > 1:
        keeps = "mixed" if facts["mixed"] else "all" if facts["carry"] == 1 else "scaled"
        return {"reads": "streams", "keeps": keeps, "writes": "spread"}
    looks_back = facts["mixes"] or facts["reads"] != "stream"
    number = facts["coefficient"] != 1 or facts["learned"] and not facts["mixes"] or shrinks(row)
    writes = (
        "part" if facts["orthogonal"] or facts["erases"] else "gate" if facts["gate"] else "whole"
    )
    if writes == "whole" and number and facts["adds"] and facts["norm"] not in ("write", "both"):
        writes = "number"
    keeps = "apart" if not facts["adds"] else "scaled" if facts["family"] == "carry" else "all"
    keeps = "erased" if facts["erases"] else keeps
    return {"reads": "earlier" if looks_back else "stream", "keeps": keeps, "writes": writes}


def questions() -> list[str]:
    """The three questions, as controls."""
    asked = {"reads": READS, "keeps": KEEPS, "writes": WRITES}
    return [kit.choice(name, f"it {name}", {**ANY, **words}, "") for name, words in asked.items()]


def rule_poster() -> str:
    """HTML of the poster: the three questions, and a card for each registered rule."""
    rows = [(row, anatomy(row["name"], row["kind"])) for row in describe()]
    order = list(FAMILIES)
    rows.sort(key=lambda one: order.index(one[1]["family"]))
    controls = questions()
    controls.append('<button type="reset">all rules</button>')
    style = f"{kit.style()}{kit.style('gallery.css')} {kit.style('poster.css')}"
    return "\n".join(
        [
            '<div class="rr-poster">',
            f"<style>{style}</style>",
            '<div class="rr-explorable rr-part" hidden>',
            f'<form autocomplete="off">{"".join(controls)}</form>',
            '<p aria-live="polite"></p></div>',
            *(_group(kind, title, rows) for kind, title in KINDS.items()),
            f"<script>\n{kit.script_of('poster.js')}\n</script>",
            "</div>",
        ]
    )


def _group(kind: str, title: str, rows: list[tuple[dict, dict]]) -> str:
    cards = "".join(_card(*one) for one in rows if one[0]["kind"] == kind)
    return f'<section><h2>{title}</h2><div class="rr-gallery">{cards}</div></section>'


def _card(row: dict, facts: dict) -> str:
    attributes = "".join(f' data-{name}="{key}"' for name, key in answers(row, facts).items())
    return (
        f'<div class="rr-rule"{attributes}><div class="rr-explorable rr-part">'
        f"{gallery.name(row, facts)}{gallery.drawing(row, facts)}</div>"
        f"{gallery.equation(row)}</div>"
    )
