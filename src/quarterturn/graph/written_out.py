"""Layers of torch that are made of others, and what they do in calls that can be followed.

Torch's encoder layers can be followed by their own code. Its attention cannot: that joins examples and heads in one
axis, and may be one operator for all of it.
"""

from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

FOLLOWED = (nn.TransformerEncoder, nn.TransformerEncoderLayer)


def attended(query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0) -> Any:
    """Torch's attention in eval mode. The graph has it as one call, which says what is dropped in training."""
    return F.scaled_dot_product_attention(query, key, value, mask)


def with_part(x: Any, key: Any, part: Any) -> Any:
    """What `x[key] = part` leaves in `x`, as a copy."""
    whole = x.clone()
    whole[key] = part
    return whole


def multihead_attention(
    layer: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """What `nn.MultiheadAttention` does, on stand-ins of batches of tokens."""
    if key_padding_mask is not None or is_causal or layer.bias_k is not None or layer.add_zero_attn:
        raise fx.proxy.TraceError("attention with padding, an order of tokens, or added keys is not known")
    if query.dim() != 3:
        raise fx.proxy.TraceError("attention on tokens without a batch is not known")
    q, k, v = _projected(layer, query, key, value)
    q, k, v = (_as_heads(x if layer.batch_first else x.transpose(0, 1), layer.num_heads) for x in (q, k, v))
    mask = attn_mask
    if mask is not None and mask.dtype.is_floating_point is False:
        mask = ~mask  # here it says what is seen, and there what is not
    out = q.tracer.create_proxy("call_function", attended, (q, k, v, mask, layer.dropout), {})
    out = out.transpose(1, 2).flatten(2)
    out = F.linear(out if layer.batch_first else out.transpose(0, 1), layer.out_proj.weight, layer.out_proj.bias)
    if not need_weights:
        return out, None
    scores = (q * layer.head_dim**-0.5) @ k.transpose(-2, -1)
    if attn_mask is not None:
        if not attn_mask.dtype.is_floating_point:
            raise fx.proxy.TraceError("weights of attention with a mask are not known: call it with need_weights=False")
        scores = scores + attn_mask
    weights = scores.softmax(dim=-1)
    return out, weights.mean(dim=1) if average_attn_weights else weights


def _projected(layer: nn.MultiheadAttention, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values, all heads in one axis."""
    if layer.in_proj_weight is None:
        biases = [None] * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        return q, k, v
    if query is not key or key is not value:
        raise fx.proxy.TraceError("attention whose queries, keys and values come from several tensors is not known")
    q, k, v = F.linear(query, layer.in_proj_weight, layer.in_proj_bias).chunk(3, dim=-1)
    return q, k, v


def _as_heads(x: Any, heads: int) -> Any:
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


WRITTEN_OUT: dict[type[nn.Module], Callable[..., Any]] = {nn.MultiheadAttention: multihead_attention}
