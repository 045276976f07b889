"""Orthogonal updates: only the part of an update that is orthogonal to the stream is written."""

from torch import Tensor

from .base import Option, Rule, Site, register


@register("orthogonal")
class Orthogonal(Rule):
    """h ← h + u − s·h with s = ⟨h, u⟩ / (⟨h, h⟩ + ε) per token: only what is orthogonal is added.

    The length of the stream then never shrinks: ‖h_l‖² = ‖h_{l−1}‖² + ‖u_⊥‖², up to ε. The form
    per token and ε = 1e-6 are those of the authors' code; the paper's experiments are on images.
    """

    equation = (
        r"h_l = h_{l-1} + u_l - s_l\,h_{l-1},\quad"
        r" s_l = \frac{\langle h_{l-1}, u_l\rangle}{\langle h_{l-1}, h_{l-1}\rangle + \varepsilon}"
    )
    source = "Orthogonal Residual Updates (2505.11881)"
    options = {
        "eps": Option(1e-6, "ε", "a number above 0", lambda number: 0 < number < float("inf"))
    }

    def along(self, h: Tensor, u: Tensor) -> Tensor:
        """s: how much of h the update holds, (B, T, 1)."""
        return (h * u).sum(-1, keepdim=True) / (h.square().sum(-1, keepdim=True) + self.opt.eps)

    def write(self, state: Tensor, u: Tensor) -> Tensor:
        return state + (u - self.along(state, u) * state)

    def kept(self, h: Tensor, u: Tensor) -> Tensor:
        return 1 - self.along(h, u)

    def coefficient(self, site: Site) -> None:
        return None  # how much of u is left depends on where h points

    def carry(self, site: Site) -> None:
        return None
