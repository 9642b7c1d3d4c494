"""One value in (`model.CampaignReport`), several writers out: terminal, Markdown, JSON, HTML.

Writers are functions of the report alone: the same report gives the same bytes. Every text in it may come from a
model or a device: each writer escapes for its own format, and `device_runner.safe_text.visible` takes control
characters out first.
"""
