"""The apps of Gatehouse, one per room of the building; imports point down only (see README, Layout)."""
