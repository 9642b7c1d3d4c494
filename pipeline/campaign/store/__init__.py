"""Results in a database: SQLite in a file by default, any SQLAlchemy URL for a lab.

A run is in whole or not at all, found again by (campaign, planned run, round): a pipeline that was killed continues
where it stopped, and nothing is stored twice. Raw latencies are kept beside the result, as little-endian int64. Every
row has a digest that is checked when it is read; databases of earlier releases are upgraded when they are opened.
"""

from pipeline.campaign.store.database import lasting, open_reading, open_store
from pipeline.campaign.store.refusals import StoreError
from pipeline.campaign.store.store import Store
from pipeline.campaign.store.writer import REPEATED

__all__ = ["REPEATED", "Store", "StoreError", "lasting", "open_reading", "open_store"]
