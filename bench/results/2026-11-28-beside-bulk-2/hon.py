# hon.py SOCK VOL OUT SECS SPAN_MIB: one 4 KiB request at a time, a read and a write by turns, 1 ms between; `OUT` gets one line for each
import sys,os,random,time
from nb import *
sock,vol,out,secs=sys.argv[1],sys.argv[2],sys.argv[3],float(sys.argv[4])
base=32<<20; n=64; s=open_simple(sock,vol,timeout=60); d=os.urandom(4096); L=[]
for i in range(n): assert write(s,base+i*4096,d)==0
open(out+'.rdy','w').close()
while not os.path.exists(os.path.dirname(out)+'/go'): time.sleep(.005)
end=time.monotonic()+secs; r=random.Random(1)
while time.monotonic()<end:
    for k in 'RW':
        o=base+r.randrange(n)*4096; t=time.time_ns()
        if k=='R': e,b=read(s,o,4096); assert e==0 and b==d
        else: assert write(s,o,d)==0
        L.append((k,t,time.time_ns())); time.sleep(.001)
open(out,'w').write('\n'.join('%s %d %d'%x for x in L)+'\n')
