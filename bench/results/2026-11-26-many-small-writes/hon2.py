# hon.py SOCK VOL OUT SECS : depth-1 client 4K cached read + 4K write; out json
import sys,json,os; from nb import *
sock,vol,out,secs=sys.argv[1],sys.argv[2],sys.argv[3],float(sys.argv[4])
base=64<<20; R=[];W=[];err=[];bad=0
def mk():
    return open_simple(sock,vol,timeout=60)
import random
s=None; exp={}; end=time.monotonic()+secs; cur=None
while time.monotonic()<end:
    try:
        if s is None:
            t=time.monotonic(); s=mk(); cur=time.monotonic()-t
            if not exp:
                for i in range(64):
                    d=os.urandom(16)*256; assert write(s,base+i*4096,d)==0; exp[i]=d
                open(out+".rdy","w").close()
                while not os.path.exists(os.path.dirname(out)+"/go"): time.sleep(.02)
                end=time.monotonic()+secs
        i=random.randrange(64); t=time.monotonic(); e,b=read(s,base+i*4096,4096); R.append(time.monotonic()-t)
        if e: err.append('r%d'%e)
        elif b!=exp[i]: bad+=1
        i=random.randrange(64); d=os.urandom(16)*256; t=time.monotonic(); e=write(s,base+i*4096,d); W.append(time.monotonic()-t)
        if e: err.append('w%d'%e)
        exp[i]=d
    except Exception as x:
        err.append(repr(x)[:80]); 
        try: s.close()
        except: pass
        s=None; time.sleep(.05)
    time.sleep(.002)
def q(l):
    l=sorted(l); 
    return [round(x*1e3,2) for x in (l[len(l)//2],l[int(len(l)*.99)],l[-1])] if l else None
json.dump(dict(n=len(R),r=q(R),w=q(W),conn=round(cur*1e3,1) if cur else None,err=len(err),errs=sorted(set(err))[:3],bad=bad),open(out,'w'))
