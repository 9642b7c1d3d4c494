"""What Alembic runs for a command: the migrations, on the connection and in the transaction of the caller."""

from alembic import context

from pipeline.campaign.store import tables as store_tables

context.configure(connection=context.config.attributes["connection"], target_metadata=store_tables.metadata)
with context.begin_transaction():
    context.run_migrations()
