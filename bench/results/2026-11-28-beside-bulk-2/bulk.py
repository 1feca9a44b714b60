# bulk.py KIND SOCK VOL N SECS: N connections, 16 requests of 1 MiB under way on each; KIND is w (writes) or r (reads)
import sys,random,threading
from nb import *
kind,sock,vol,N,secs=sys.argv[1],sys.argv[2],sys.argv[3],int(sys.argv[4]),float(sys.argv[5])
M=1<<20; D=os.urandom(M); cnt=[0]*N; lo,hi=64,int(sys.argv[6]) if len(sys.argv)>6 else 1024
end=time.monotonic()+secs
def go_(i):
    s=open_simple(sock,vol,timeout=60); r=random.Random(i)
    def ask():
        o=r.randrange(lo,hi)*M
        if kind=='w': s.sendall(req(1,1,o,M)); s.sendall(D)
        else: s.sendall(req(0,1,o,M))
    buf=bytearray(M)
    def rd(n):
        v=memoryview(buf)[:n]; g=0
        while g<n:
            x=s.recv_into(v[g:]); assert x; g+=x
    for _ in range(16): ask()
    while True:
        e,_=simple(s); assert e==0,e
        if kind=='r': rd(M)
        cnt[i]+=1
        if time.monotonic()>end: break
        ask()
    s.close()
T=[threading.Thread(target=go_,args=(i,)) for i in range(N)]; t=time.monotonic()
[x.start() for x in T]; [x.join() for x in T]
print('%.1f'%(sum(cnt)/(time.monotonic()-t)))
