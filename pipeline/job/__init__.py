"""The whole job: prepare (convert, reference, check), measure, assemble the report, ship the bundle.

Each step takes values and gives values; `run` is their sequence. What is stored with a campaign (`Plan`) is enough to
write its report and its bundle again without measuring. Nothing is imported here: a command that only reads stored
results waits for no converter.
"""
