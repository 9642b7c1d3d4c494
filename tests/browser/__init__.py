"""The report page in a real Chromium (nox -s browser_tests)."""
