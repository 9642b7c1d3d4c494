"""What Snapdragon's NPU (the Hexagon Tensor Processor, HTP) takes of a model, asked of Qualcomm's own compiler."""
