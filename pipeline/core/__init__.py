"""What every other package of the pipeline may use, and which uses none of them."""
