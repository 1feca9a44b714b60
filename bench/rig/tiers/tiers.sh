#!/bin/bash
# tiers-MODE: tiers, and what there is instead of them; peer.py has the modes
. "${0%/*}/../lib.sh"
exec python3 "$EXTRA/tiers/peer.py" "$@"
