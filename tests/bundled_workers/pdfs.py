"""Real PDFs, written by a library that is not the one that reads them."""

from collections.abc import Sequence
from pathlib import Path

from fpdf import FPDF


def write_pdf(path: Path, pages: Sequence[Sequence[str]], *, title: str = "") -> Path:
    """Write a PDF with these lines on its pages."""
    pdf = FPDF()
    pdf.set_title(title)
    pdf.set_font("Helvetica", size=10)
    for lines in pages:
        pdf.add_page()
        for line in lines:
            pdf.cell(text=line, new_x="LMARGIN", new_y="NEXT")
    pdf.output(str(path))
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
