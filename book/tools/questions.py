"""Questions that a page checks while it is read: one of several answers, or a number.

Without scripts, and in the plain edition, the answer stands in a fold below the question.
"""

import html

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

RIGHT = "✓ "  # how the right one of a list begins


class Choose(SphinxDirective):
    """Answers to choose from: a list, the right one beginning with ✓, then why it is right."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        box = nodes.container(classes=["rr-choose"])
        self.state.nested_parse(self.content, self.content_offset, box)
        options = next(iter(box.findall(nodes.bullet_list)), None)
        items = [] if options is None else [*options.findall(nodes.list_item)]
        right = [item for item in items if item.astext().startswith(RIGHT.strip())]
        if options is None or len(right) != 1 or box.index(options) != 0 or len(box) < 2:
            raise self.error("choose needs a list with one item that begins with ✓, and then why")
        first = next(iter(right[0].findall(nodes.Text)))
        first.parent.replace(first, nodes.Text(first.astext().removeprefix(RIGHT.strip()).lstrip()))
        right[0]["classes"].append("rr-right")
        options["classes"].append("rr-options")
        why = nodes.container("", *box.children[1:], classes=["rr-why"])
        box.children[1:] = [why]
        why.parent = box
        return [box]


class Number(SphinxDirective):
    """A number to find. Options: right, within (a share of it, 0 by default), unit; then why."""

    has_content = True
    option_spec = {
        "right": directives.unchanged_required,
        "within": directives.unchanged,
        "unit": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        try:
            right, within = float(self.options["right"]), float(self.options.get("within", 0))
        except (KeyError, ValueError):
            raise self.error("number needs :right:, a number, and :within:, a share") from None
        unit = html.escape(self.options.get("unit", ""))
        opened = (f'<div class="rr-number" data-right="{right!r}" data-within="{within!r}" '
                  f'data-unit="{unit}">')  # fmt: skip
        why = nodes.container(classes=["rr-why"])
        self.state.nested_parse(self.content, self.content_offset, why)
        close = nodes.raw("", "</div>", format="html")
        return [nodes.raw("", opened, format="html"), why, close]
