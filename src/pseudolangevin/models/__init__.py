"""Networks: the paper's feed-forward network, with fast gradients."""

from .feedforward import FeedForward, feedforward

__all__ = ["FeedForward", "feedforward"]
