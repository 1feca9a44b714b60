#!/usr/bin/env python3
"""Medians of results of the tiers' rows: summary.py FILE... (results.jsonl of the rig, or what `--bench scratch` printed)"""
import json, statistics, sys


def med(values):
    values = [v for v in values if v is not None]
    return "%s (%s)" % (round(statistics.median(values), 3), ", ".join(str(round(v, 3)) for v in values)) if values else "-"


def at(tree, path):
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


COLUMNS = ("of_linear", "mbs", "moved_per_new_byte", "worst_second_mbs", "main.mbs", "main.warm.mbs", "main.main.mbs", "main.main.read.p99_us", "main.neighbour_warm.p99_us",
           "main.neighbour_main.p99_us", "main.worst_second_mbs", "main.vm.pswpout", "main.end.memory_oom_kill", "main.empty.mbs", "main.half.mbs", "main.whole.mbs", "main.double.mbs",
           "main.again.mbs", "main.1m.mbs", "main.256k.mbs", "main.128k-buffered.mbs", "main.paused.read.p99_us", "main.before.read.p99_us", "main.moving.read.p99_us",
           "main.moving.moved_mbs", "main.moving.busy", "main.randread-1.read.iops", "main.randread-16.read.iops", "main.randwrite-1.write.iops", "main.randwrite-16.write.iops")
groups = {}
for name in sys.argv[1:]:
    for line in open(name):
        it = json.loads(line)
        key = (it["workload"], it.get("depth", ""), it["peer"], it.get("burst", ""))
        groups.setdefault(key, []).append(it)
for key, them in groups.items():
    print(*key)
    for column in COLUMNS:
        values = [at(it, column) for it in them]
        if any(v is not None for v in values):
            print("   %-32s %s" % (column, med(values)))
    for it in them:
        if it.get("error"):
            print("   error:", it["error"][:200])
