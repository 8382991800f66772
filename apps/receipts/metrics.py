"""What sending receipts elsewhere counts, under the names that DeleGates' receipts have had from the first."""

from typing import Final

from apps.core.metrics import Counter, Histogram

EMISSIONS: Final = Counter(
    "delegate_receipt_emissions_total",
    "Receipts of a DeleGate sent to an inbox service elsewhere.",
    ["delegate_id", "success"],
)
EMISSION: Final = Histogram("delegate_receipt_emission_duration_seconds", "How long sending one took.")
