"""Real PDFs, written by a library that is not the one that reads them."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure


def write_pdf(path: Path, pages: Sequence[Sequence[str]], *, title: str = "") -> Path:
    """Write a PDF with these lines on its pages."""
    with PdfPages(path, metadata={"Title": title}) as pdf:
        for lines in pages:
            figure = Figure(figsize=(8.3, 11.7))
            for number, line in enumerate(lines):
                figure.text(0.1, 0.9 - 0.03 * number, line, fontsize=10)
            pdf.savefig(figure)
    return path


GRADIENTS = [
    [
        "Gradient descent optimizes neural networks.",
        "Neural networks learn representations by gradient descent.",
        "The learning rate of gradient descent decides how far each step goes.",
    ],
    ["Stochastic gradient descent looks at small batches.", "Neural networks with many layers need many batches."],
]
RECEIPTS = [["A receipt says that something happened.", "Receipts are immutable, and an inbox holds receipts."]]
