"""The report of finished runs: tables, figures, one HTML page."""
