"""Parallel residuals: attention and MLP of a block read the same state."""

from torch import Tensor

from .base import Rule, Site, one_of, register


@register("parallel")
class Parallel(Rule):
    """h ← h + attention(norm(h)) + MLP(norm(h)): both sublayers of a block read what it began with.

    norm=shared, the default, has one norm for both, as GPT-J and PaLM do; norm=own one for each, as
    GPT-NeoX. `rr` runs the two one after the other: that both could run at once on a GPU is not
    used, so a step is no faster here.

    State: [h, what the MLP of this block reads].
    """

    equation = (
        r"h_b = h_{b-1} + \mathrm{attn}(x_b) + \mathrm{mlp}(x_b),\quad"
        r" x_b = \mathrm{norm}(h_{b-1})"
    )
    source = "GPT-J (Wang & Komatsuzaki 2021); PaLM (2204.02311); GPT-NeoX (2204.06745)"
    shipped = "GPT-J, PaLM, GPT-NeoX (their papers)"
    state = "pair"
    options = {
        "norm": one_of("shared", "one norm for both sublayers, or each its own", "shared", "own")
    }

    def norm_params(self, site: Site) -> int:
        return 0 if site.kind == "mlp" and self.opt.norm == "shared" else super().norm_params(site)

    def open(self, x0: Tensor) -> list[Tensor]:
        return [x0, x0]

    def read(self, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, begun = state
        if self.site.kind == "mlp":
            return (begun if self.opt.norm == "shared" else self.prenorm(begun)), state
        x = self.prenorm(h)
        return x, [h, x if self.opt.norm == "shared" else h]

    def write(self, state: list[Tensor], u: Tensor) -> list[Tensor]:
        h, begun = state
        h = h + u
        return [h, h if self.site.kind == "mlp" else begun]
