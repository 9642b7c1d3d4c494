"""What a model is run on: test data, declared values and random numbers as samples, one at a time."""

from pipeline.dataset.dataset import Dataset, Part, Sample, dataset_of, labelled_data, part_of, preprocess_of
from pipeline.dataset.files import check_data, first_sample, given_sizes, overlap, samples, sizes_in
from pipeline.model.signature import Array, TensorInfo

__all__ = [
    "Array",
    "Dataset",
    "Part",
    "Sample",
    "TensorInfo",
    "check_data",
    "dataset_of",
    "first_sample",
    "given_sizes",
    "labelled_data",
    "overlap",
    "part_of",
    "preprocess_of",
    "samples",
    "sizes_in",
]
