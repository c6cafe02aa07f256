"""The step: gradients, clipping, loss scaling, accumulation."""
