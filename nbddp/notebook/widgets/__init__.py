"""Widgets that live in ranks, shown in the notebook."""
