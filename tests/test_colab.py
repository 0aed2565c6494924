"""The notebooks run from top to bottom, and what they show was saved."""

import pathlib

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / 'colab').glob('*.ipynb'))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_saved(path):
  notebook = nbformat.read(path, 4)
  outputs = [o for cell in notebook.cells if cell.cell_type == 'code' for o in cell.outputs]
  assert any('image/png' in o.get('data', {}) for o in outputs)
  assert not any(o.output_type == 'error' for o in outputs)


@pytest.mark.slow
@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(path):
  nbclient.NotebookClient(nbformat.read(path, 4), timeout=600).execute()
