"""Programs of the developers: measurements, checks of a real card, what writes the dashboards."""
