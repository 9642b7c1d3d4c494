"""The app's own data in place of tensors: what makes one of the other is a part of the model's graph."""
