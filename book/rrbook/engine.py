"""The papermill engine `plain`: `papermill --engine plain IN.ipynb OUT.ipynb -p ...`.

It executes the notebook as papermill does without it, and leaves the plain edition.
"""

from pathlib import Path

from click import ClickException
from papermill.engines import NBClientEngine

from .plain import convert


class PlainEngine(NBClientEngine):
    """papermill's own engine, then the plain edition of what was executed."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, **kwargs):
        name = Path(kwargs.get("input_path") or "notebook").stem
        convert(nb_man.nb, name)  # markup that is not known ends it now, not after the training
        super().execute_managed_notebook(nb_man, kernel_name, **kwargs)
        ours = ("BadParameter", "RRError", "RunFailed")  # each is one line
        for output in (one for cell in nb_man.nb.cells for one in cell.get("outputs", [])):
            if output.output_type == "error" and output.ename in ours:
                raise ClickException(output.evalue)  # which papermill prints as one line
        nb_man.nb = convert(nb_man.nb, name)
        for cell in nb_man.nb.cells:  # papermill keeps a status of every cell
            cell.metadata.setdefault("papermill", {"status": nb_man.COMPLETED, "exception": False})
