"""What Alembic runs for a command: the migrations, on the connection and in the transaction of the caller."""

from alembic import context

from pipeline.campaign.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
