"""The report of finished runs: tables, figures and an HTML page."""
