"""Parts of scripts/peer-attention.py."""
