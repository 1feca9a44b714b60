# control.sh FILE: what the disk itself does: fio, 4 KiB reads one at a time beside 1 MiB at some depth, direct, no Forebay
ctl() { fio --output-format=json --runtime=3 --time_based --direct=1 --filename=$f --name=h --rw=randread --bs=4k --iodepth=1 --thinktime=1000 --ioengine=io_uring \
  ${2:+--name=b --rw=$1 --bs=1M --iodepth=$2 --ioengine=io_uring --thinktime=0} 2>/dev/null | python3 -c "
import json,sys; j=json.load(sys.stdin)['jobs']; p=j[0]['read']['clat_ns']['percentile']
print('$1 depth $2: honest p50 %.2f p99 %.2f ms'%(p['50.000000']/1e6,p['99.000000']/1e6), *['bulk %.0f MiB/s'%((x['read']['bw']+x['write']['bw'])/1024) for x in j[1:]])"; }
f=$1; ctl; for d in 4 8 16 128; do ctl randread $d; done; for d in 4 8 16; do ctl randwrite $d; done; ctl
