"""Members that are tried."""
# ruff: noqa
# pyright: basic
from dataclasses import dataclass, replace
from functools import partial
import numpy as np
from stmaml.pool.base import *
from stmaml.pool.boosted.summaries import *
from stmaml.pool.boosted.summaries import Reader
from stmaml.pool.boosted.simulated import Joined, simulate
from stmaml.pool.boosted.spread import learn_spread, Said
from stmaml.pool.boosted.growing import limited
from stmaml.pool.boosted import _ROOTS, _CLASS_ROOTS
from stmaml.pool.boosted.class_summaries import _learn_reader, ClassSummaries
from stmaml.pool.boosted.classes import learn_caution
from stmaml.pool.boosted.trees import Trees

def trees_from(trees, size):
    nodes=[t.tree_ for t in trees]; sizes=np.array([n.node_count for n in nodes]); roots=np.cumsum(sizes)-sizes
    shift=np.repeat(roots,sizes)
    L=np.concatenate([n.children_left for n in nodes]); R=np.concatenate([n.children_right for n in nodes])
    leaf=L<0; own=np.arange(len(L))
    F=np.concatenate([n.feature for n in nodes]); T=np.concatenate([n.threshold for n in nodes])
    V=np.concatenate([n.value[:,0,0] for n in nodes])/len(nodes)
    return Trees(np.zeros(1), roots[:,None], np.where(leaf,0,F).astype(np.int32), np.where(leaf,np.inf,T),
        np.where(leaf,own,L+shift).astype(np.int32), np.where(leaf,own,R+shift).astype(np.int32), np.where(leaf,V,0.0), np.array(max(n.max_depth for n in nodes)))

def forest(x, y, group, seed, num=60, min_leaf=5, feats=0.4, part=0.7, extra=True):
    from sklearn.tree import ExtraTreeRegressor, DecisionTreeRegressor
    kind = ExtraTreeRegressor if extra else partial(DecisionTreeRegressor, splitter="best")
    random=np.random.default_rng([seed,31])
    names, g = np.unique(group, return_inverse=True)
    out=[]; total=np.zeros(len(y)); count=np.zeros(len(y))
    x32=np.asarray(x,dtype=np.float32)
    for i in range(num):
        chosen=np.zeros(len(names),bool); chosen[random.permutation(len(names))[:max(int(np.ceil(part*len(names))),1)]]=True
        inside=chosen[g]
        t=kind(min_samples_leaf=min_leaf, max_features=feats, random_state=int(random.integers(2**31)))
        t.fit(x32[inside], y[inside])
        if (~inside).any():
            total[~inside]+=t.predict(x32[~inside]); count[~inside]+=1
        out.append(t)
    held=np.where(count>0,total/np.maximum(count,1),0.0)
    return trees_from(out,len(y)), held

@dataclass(frozen=True)
class ForestMember:
    name: str = "forest"
    extra: bool = True
    leaf: float = 1.0
    feats: float = 0.4
    def suits(self, rows): return rows.num_classes==0
    def fit_each(self, rows, parts, draw):
        return [self.one(r, draw) for r in _ROOTS.of_each(rows, parts, draw)]
    def one(self, rooted, draw):
        rows, root = rooted.rows, rooted.root
        joined = Joined.of(simulate(rows, draw, simulated_rows(len(rows.y))))
        said, asked = root.said(rows, rooted.held_out, joined), joined.asked
        reader = Reader(root, learn_line(rows.x, rows.y, rows.group), *near_columns(rows))
        features = reader.read(rows, rooted.held_out, joined, said)
        left, group = rows.y[asked] - said.mean, rows.group[asked]
        leaf=int(np.clip(self.leaf*len(left)/300,5,60))
        trees, held = forest(features, left, group, draw.seed, extra=self.extra, min_leaf=leaf, feats=self.feats)
        held_out = replace(said, mean=said.mean + held)
        return Summaries(reader, trees, learn_spread(held_out, rows.y[asked], group, draw.seed))
    def restore(self, state): raise NotImplementedError

@dataclass(frozen=True)
class ForestClasses:
    name: str = "forest"
    def suits(self, rows): return rows.num_classes==2
    def fit_each(self, rows, parts, draw):
        return [self.one(r, draw) for r in _CLASS_ROOTS.of_each(rows, parts, draw)]
    def one(self, root, draw):
        rows=root.rows
        joined = Joined.of(simulate(rows, draw, simulated_rows(len(rows.y))))
        y, group = root.y[joined.asked], rows.group[joined.asked]
        reader=_learn_reader(root, joined); start=reader.start(rows, root.held_out, joined)
        leaf=int(np.clip(len(y)/150,15,100))
        trees, held = forest(start.features, y.astype(float), group, draw.seed, min_leaf=leaf)
        logit=lambda p: np.log(np.clip(p,1e-3,1-1e-3)/(1-np.clip(p,1e-3,1-1e-3)))
        raw=np.stack([-logit(held)/2, logit(held)/2],1)
        caution=learn_caution(raw, y, reader.shares)
        return FittedFC(root.fitted.trees, reader, trees, caution)
@dataclass(frozen=True)
class FittedFC:
    shared: object; reader: object; trees: object; caution: object
    def predict(self, tasks):
        joined, rows = Joined.of(tasks), tasks.rows
        raw, used = np.zeros((len(rows.y), 2)), joined.used
        raw[used] = self.shared.predict(rows.x[used])
        start = self.reader.start(rows, raw, joined)
        p=np.clip(self.trees.predict(start.features)[:,0],1e-3,1-1e-3); l=np.log(p/(1-p))/2
        share=self.caution(np.stack([-l,l],1))
        return Forecast(share, np.zeros(len(share)), np.zeros(len(share)))
    def state(self): return {}

# ---- lme4-like
from stmaml.pool.mixed.numbers import FittedMixed, Mixed
from stmaml.pool.mixed import fit as F
from stmaml.pool.mixed.design import Design, Own, varies_within, _reach
from stmaml.pool.mixed.splines import wiggles
from stmaml.pool.mixed.products import Products
from stmaml.pool.mixed.levels import Levels, MOST_LEVELS
from threadpoolctl import threadpool_limits

def plain_design(rows, products=False):
    center, spread = rows.x.mean(0), rows.x.std(0)
    live = spread > 1e-9*(1+np.abs(center))
    inverse=np.where(live,1/np.where(live,spread,1),0.)
    scaled=(rows.x-center)*inverse
    varies=varies_within(rows)
    # free columns must be independent: keep those that add rank
    kept=[]; 
    basis=np.ones((len(scaled),1))/np.sqrt(len(scaled))
    for j in np.flatnonzero(live):
        v=scaled[:,j]-basis@(basis.T@scaled[:,j])
        n=np.linalg.norm(v)
        if n>1e-3*np.sqrt(len(scaled)): kept.append(j); basis=np.column_stack([basis,v/n])
    keep=np.zeros(len(live),bool); keep[kept]=True
    inverse=np.where(keep,inverse,0.); scaled=(rows.x-center)*inverse
    numbers=np.array([c.kind=="number" for c in rows.columns])
    cand=np.flatnonzero(numbers&keep&varies)
    means=[np.bincount(rows.group,c)/np.maximum(rows.counts,1) for c in scaled.T]
    within=np.array([(c-m[rows.group]).var() for c,m in zip(scaled.T,means)])
    bends={}; main=cand[:0]
    if len(cand):
        main=cand[np.argsort(-within[cand])][:1]
        w=wiggles(scaled[:,main[0]], min(4,len(rows.y)//15)) if len(rows.y)>=30 else None
        if w is not None: bends={int(main[0]):w}
    prod=Products(np.zeros((0,2),int), np.zeros((2,len(live))))
    return Design(center,inverse,bends,False,Levels.of(rows,MOST_LEVELS),prod,_reach(rows,varies)), main

@dataclass(frozen=True)
class PlainMixed:
    name: str="mixed-plain"
    def suits(self, rows):
        known=F.labelled(rows)
        return rows.num_classes==0 and rows.num_groups>=3 and bool(varies_within(known).any()) and rows.x.shape[1]<=20
    def fit_each(self, rows, parts, draw):
        starts=F.Starts(); out=[]
        with threadpool_limits(1,"blas"):
            for part in parts:
                mine,center,scale=F._standard(F.labelled(rows.of_groups(part)))
                design,main=plain_design(mine)
                own=Own(main,len(main),main[:0])
                theta,structure,sums=F._variances(mine,design,own,starts)
                factor=structure.covariance.factor(theta[:structure.covariance.num])
                solved=F._solved(mine,design,own,structure,theta,factor)
                noise=F._noise(mine.group,design.matrices(mine,own),sums,F.groups_of(sums,factor),solved,structure)
                out.append(FittedMixed(F._assembled(design,own,factor,solved,theta,structure,center,scale,noise)))
        return out
    def restore(self, state): raise NotImplementedError

# ---- prior, flipped
from stmaml.pool.prior import Prior, FittedPrior
@dataclass(frozen=True)
class Flipped:
    """prior of -y, -x(numbers)"""
    fitted: FittedPrior
    y: float; x: np.ndarray
    def predict(self, tasks):
        rows=tasks.rows
        c=rows.num_classes
        yy=(1-rows.y if self.y<0 else rows.y) if c else rows.y*self.y
        said=self.fitted.predict(replace(tasks, rows=replace(rows, x=rows.x*self.x, y=yy)))
        mean=(said.mean[:,::-1] if self.y<0 else said.mean) if c else said.mean*self.y
        return Forecast(mean, said.task_variance, said.noise_variance)
    def state(self): return {}
@dataclass(frozen=True)
class PriorFlip:
    name: str="prior-flip"
    y: float=-1.; xs: float=1.
    def suits(self, rows): return Prior().suits(rows) and rows.num_classes in (0,2) and rows.num_groups<=60
    def fit_each(self, rows, parts, draw):
        sign=np.array([self.xs if c.kind in("number","wave") else 1. for c in rows.columns])
        yy=(1-rows.y if self.y<0 else rows.y) if rows.num_classes else rows.y*self.y
        fits=Prior().fit_each(replace(rows,x=rows.x*sign,y=yy),parts,draw)
        return [Flipped(f,self.y,sign) for f in fits]
@dataclass(frozen=True)
class PriorFew:
    name: str="prior"
    def suits(self, rows): return Prior().suits(rows) and rows.num_groups<=60
    def fit_each(self, rows, parts, draw): return Prior().fit_each(rows,parts,draw)

# ---- smooth marginal regression with effects of groups
from stmaml.pool.mixed.design import design_of
from stmaml.pool.boosted.effects import choose, design as eff_design, sums_of
from stmaml.pool.boosted.growing import folds_of as grow_folds
LINES=(1e-4,1e-3,1e-2,3e-2,0.1,0.3,1.0); CURVES=(1e-3,1e-2,0.1,1.0,10.0,1e6)
@dataclass(frozen=True)
class SmoothRoot:
    design: object; beta: np.ndarray; chosen: object; limits: tuple
    def mean(self,x):
        return np.clip(self.design.common(self.design.scaled(x))@self.beta,*self.limits)
    def shared(self, rows, joined):
        shared, used = np.full(len(rows.y), np.nan), joined.used
        shared[used]=self.mean(rows.x[used]); return shared
    def said(self, rows, shared, joined):
        support, z = joined.support, eff_design(rows.x, self.chosen.slopes)
        left = rows.y[support]-shared[support]
        b=self.chosen.prior.belief(sums_of(z[support],left,joined.support_task,len(joined.shots)))
        x=rows.x[joined.asked]
        effect,var=b.at(eff_design(x,self.chosen.slopes),joined.task)
        return Said(shared[joined.asked]+effect,var,var+self.chosen.prior.noise,joined.log_shots,x)
@dataclass(frozen=True)
class FittedSmooth:
    root: object; spread: object
    def predict(self,tasks):
        joined=Joined.of(tasks)
        return self.spread.forecast(self.root.said(tasks.rows,self.root.shared(tasks.rows,joined),joined))
    def state(self): return {}
def smooth_fit(rows, seed, by_group=False):
    design=design_of(rows)
    X=design.common(design.scaled(rows.x)); y=rows.y; n=len(y)
    blocks=design.blocks()[len(design.levels.sizes):]
    ends=np.cumsum((0,*blocks)); p=X.shape[1]
    kind=np.full(p,2)  # 0 intercept,1 line,2 curve
    wide=ends[-1]
    if design.ridged and len(blocks): kind[ends[-2]:ends[-1]]=1
    kind[wide]=0; kind[wide+1:]=1
    fold=grow_folds(rows.group,seed,5)
    w=np.ones(n)
    if by_group: w=1/rows.counts[rows.group]; w=w*n/w.sum()
    G=[]; C=[]
    for f in np.unique(fold):
        m=fold==f; G.append((X[m]*w[m,None]).T@X[m]); C.append((X[m]*w[m,None]).T@y[m])
    GT,CT=sum(G),sum(C)
    best=(np.inf,)
    for a in LINES:
        for b in CURVES:
            pen=np.where(kind==0,1e-9,np.where(kind==1,a,b))
            held=np.empty(n)
            for f in range(len(G)):
                A=GT-G[f]; nn=w[fold!=f].sum()
                beta=np.linalg.solve(A+np.diag(pen*nn),CT-C[f])
                held[fold==f]=X[fold==f]@beta
            lo,hi=y.min(),y.max(); r=0.25*(hi-lo)
            held=np.clip(held,lo-r,hi+r)
            loss=float((w*(y-held)**2).sum())
            if loss<best[0]: best=(loss,a,b,held)
    _,a,b,held=best
    pen=np.where(kind==0,1e-9,np.where(kind==1,a,b))
    beta=np.linalg.solve(GT+np.diag(pen*w.sum()),CT)
    lo,hi=y.min(),y.max(); r=0.25*(hi-lo)
    return design,beta,held,(lo-r,hi+r)
@dataclass(frozen=True)
class SmoothMember:
    name: str="smooth"
    by_group: bool=False
    def suits(self,rows): return rows.num_classes==0 and bool(np.any(np.ptp(rows.x,axis=0)>0)) and rows.num_groups>=3
    def fit_each(self,rows,parts,draw):
        with threadpool_limits(1,"blas"):
            return [self.one(limited(rows.of_groups(p),draw.seed),draw) for p in parts]
    def one(self,rows,draw):
        design,beta,held,limits=smooth_fit(rows,draw.seed,self.by_group)
        root=SmoothRoot(design,beta,choose(rows.x,rows.y-held,rows.group),limits)
        joined=Joined.of(simulate(rows,draw,4000)); said=root.said(rows,held,joined); asked=joined.asked
        return FittedSmooth(root,learn_spread(said,rows.y[asked],rows.group[asked],draw.seed))


# ---- smooth for two classes
from stmaml.pool.boosted.classes import leaning, shares_of, softmax
def _logistic(X,y,pen,beta=None):
    beta=np.zeros(X.shape[1]) if beta is None else beta
    for _ in range(25):
        eta=np.clip(X@beta,-30,30); p=1/(1+np.exp(-eta)); w=np.maximum(p*(1-p),1e-5)
        step=np.linalg.solve((X*w[:,None]).T@X+np.diag(pen),X.T@(y-p)-pen*beta)
        size=np.abs(step).max(); beta=beta+step*min(1,5/max(size,1e-9))
        if size<1e-4: break
    return beta
@dataclass(frozen=True)
class FittedSmoothClasses:
    design: object; beta: np.ndarray; variance: float; caution: object
    def raw(self,x):
        l=np.clip(self.design.common(self.design.scaled(x))@self.beta,-8,8); return np.stack([-l/2,l/2],1)
    def predict(self,tasks):
        joined,rows=Joined.of(tasks),tasks.rows
        raw,used=np.zeros((len(rows.y),2)),joined.used
        raw[used]=self.raw(rows.x[used])
        lean=leaning(raw[joined.support],rows.y[joined.support].astype(int),joined,self.variance)
        share=self.caution(raw[joined.asked]+lean.mean[joined.task])
        return Forecast(share,np.zeros(len(share)),np.zeros(len(share)))
    def state(self): return {}
@dataclass(frozen=True)
class SmoothClasses:
    name: str="smooth"
    def suits(self,rows): return rows.num_classes==2 and bool(np.any(np.ptp(rows.x,axis=0)>0)) and rows.num_groups>=3
    def fit_each(self,rows,parts,draw):
        with threadpool_limits(1,"blas"):
            return [self.one(limited(rows.of_groups(p),draw.seed),draw) for p in parts]
    def one(self,rows,draw):
        design=design_of(rows); X=design.common(design.scaled(rows.x)); y=rows.y.astype(float); n=len(y)
        blocks=design.blocks()[len(design.levels.sizes):]; ends=np.cumsum((0,*blocks)); p=X.shape[1]; wide=ends[-1]
        kind=np.full(p,2)
        if design.ridged and len(blocks): kind[ends[-2]:ends[-1]]=1
        kind[wide]=0; kind[wide+1:]=1
        fold=grow_folds(rows.group,draw.seed,4); best=(np.inf,)
        for a in (1.,5.,25.,100.):
            for b in ((3.,30.,300.,1e6) if (kind==2).any() else (1.,)):
                pen=np.where(kind==0,1e-6,np.where(kind==1,a,b)); held=np.empty(n)
                for f in np.unique(fold):
                    m=fold!=f; held[~m]=X[~m]@_logistic(X[m],y[m],pen*m.mean())
                held=np.clip(held,-8,8); loss=float(np.logaddexp(0,np.where(y>0,-held,held)).sum())
                if loss<best[0]: best=(loss,pen,held)
        _,pen,held=best; beta=_logistic(X,y,pen)
        raw=np.stack([-held/2,held/2],1); yi=rows.y.astype(int)
        joined=Joined.of(simulate(rows,draw,simulated_rows(n)))
        def after(v):
            lean=leaning(raw[joined.support],yi[joined.support],joined,v); return raw[joined.asked]+lean.mean[joined.task]
        t=yi[joined.asked]
        v=min((0.01,0.1,0.3,1.,3.,10.),key=lambda v:-np.log(np.maximum(softmax(after(v))[np.arange(len(t)),t],1e-12)).sum())
        return FittedSmoothClasses(design,beta,v,learn_caution(after(v),t,shares_of(yi,2)))

# ---- any member on the logarithm
from stmaml.pool.mixed.logs import MixedLog, Log, best_bend, _log, BENDS, NO_BEND, BEYOND
@dataclass(frozen=True)
class FittedLogged:
    log: Log; limits: tuple; fitted: object
    def predict(self,tasks):
        rows=replace(tasks.rows,y=self.log(tasks.rows.y))
        return self.log.back(self.fitted.predict(replace(tasks,rows=rows)),self.limits)
    def state(self): return {}
@dataclass(frozen=True)
class Logged:
    inner: object; name: str
    few: bool=False
    def suits(self,rows): return MixedLog().suits(rows) and self.inner.suits(rows) and (not self.few or rows.num_groups<=60)
    def fit_each(self,rows,parts,draw):
        out=[]; place=NO_BEND; starts=F.Starts()
        for part in parts:
            mine=F.labelled(rows.of_groups(part))
            with threadpool_limits(1,"blas"): place=best_bend(mine,place,starts)
            log=_log(mine.y,BENDS[place]); reach=BEYOND*float(np.ptp(mine.y))
            limits=(float(mine.y.min())-reach,float(mine.y.max())+reach)
            inside=replace(mine,y=log(mine.y))
            out.append(FittedLogged(log,limits,self.inner.fit_each(inside,[np.arange(mine.num_groups)],draw)[0]))
        return out
from stmaml.pool.boosted.remembered import Remembered
from stmaml.pool.boosted.roots import take_root
from stmaml.pool.mixed.classes import MixedLogistic
_OTHER=Remembered(take_root)
from scipy.optimize import minimize
def panel_column(rows):
    """column whose values come again in most groups"""
    best=None
    for j,c in enumerate(rows.columns):
        if c.kind!="number": continue
        u,idx=np.unique(np.round(rows.x[:,j],6),return_inverse=True)
        if not 3<=len(u)<=40: continue
        pair=np.unique(rows.group*len(u)+idx)
        once=len(pair)/len(idx)                       # rows that have their value alone in the group
        full=len(pair)/(len(u)*rows.num_groups)        # cells that are there
        if once<0.95 or full<0.4: continue
        if best is None or len(u)*full>best[0]: best=(len(u)*full,j,u)
    return best
def kernel(theta,u):
    t=(u-u.mean())/max(u.std(),1e-9)
    a,b,c,l,s=np.exp(theta)
    return a*a+b*b*np.outer(t,t)+c*c*np.exp(-np.abs(t[:,None]-t)/l), s*s
def patterns(there):
    pat,idx=np.unique(there,axis=0,return_inverse=True)
    return [(np.flatnonzero(p),np.flatnonzero(idx.ravel()==i)) for i,p in enumerate(pat) if p.any()]
def loglik(S,R,pats):
    out=0.
    for o,gs in pats:
        C=np.linalg.cholesky(S[np.ix_(o,o)]); z=np.linalg.solve(C,R[np.ix_(gs,o)].T)
        out+=-0.5*(z**2).sum()-len(gs)*np.log(np.diag(C)).sum()
    return out
def em(S0,R,there,nu,steps=12):
    pats=patterns(there); S=S0.copy(); G=len(R)
    for _ in range(steps):
        T=nu*S0
        for o,gs in pats:
            K=np.linalg.solve(S[np.ix_(o,o)],S[o]).T  # T x o
            E=R[np.ix_(gs,o)]@K.T
            T=T+E.T@E+len(gs)*(S-K@S[o])
        new=T/(G+nu)
        if np.abs(new-S).max()<1e-4*np.abs(S).max(): S=new; break
        S=new
    return S
@dataclass(frozen=True)
class FittedPanel:
    root: object; j: int; u: np.ndarray; mu: np.ndarray; K: np.ndarray; noise: float; spread: object
    def at(self,x): return np.abs(x[:,[self.j]]-self.u).argmin(1)
    def said(self,rows,shared,joined):
        out=np.zeros(len(joined.asked)); var=np.zeros(len(out))
        si=self.at(rows.x[joined.support]) if len(joined.support) else np.zeros(0,int); ai=self.at(rows.x[joined.asked])
        r=rows.y[joined.support]-shared[joined.support]-self.mu[si]
        for t in range(len(joined.shots)):
            a=np.flatnonzero(joined.task==t); s=np.flatnonzero(joined.support_task==t)
            if not len(s): var[a]=np.diag(self.K)[ai[a]]; continue
            A=self.K[np.ix_(si[s],si[s])]+self.noise*np.eye(len(s)); B=self.K[np.ix_(ai[a],si[s])]
            sol=np.linalg.solve(A,np.column_stack([r[s],B.T]))
            out[a]=B@sol[:,0]; var[a]=np.maximum(np.diag(self.K)[ai[a]]-(B*sol[:,1:].T).sum(1),1e-6)
        m=shared[joined.asked]+self.mu[ai]+out
        return Said(m,var,var+self.noise,joined.log_shots,rows.x[joined.asked])
    def predict(self,tasks):
        joined=Joined.of(tasks)
        return self.spread.forecast(self.said(tasks.rows,self.root.shared(tasks.rows,joined),joined))
    def state(self): return {}
@dataclass(frozen=True)
class PanelMember:
    name: str="panel"
    def suits(self,rows): return rows.num_classes==0 and rows.num_groups>=8 and panel_column(rows) is not None
    def fit_each(self,rows,parts,draw):
        _,j,u=panel_column(rows)
        out=[]; start=None
        with threadpool_limits(1,"blas"):
            for p in parts:
                f,start=self.one(rows.of_groups(p),draw,j,u,start); out.append(f)
        return out
    def one(self,rows,draw,j,u,start):
        design,beta,held,limits=smooth_fit(rows,draw.seed)
        root=SmoothRoot(design,beta,None,limits)
        r=rows.y-held; idx=np.abs(rows.x[:,[j]]-u).argmin(1); G,T=rows.num_groups,len(u)
        n=np.bincount(idx,minlength=T); mu=np.bincount(idx,r,T)/(n+3.0)
        r=r-mu[idx]
        cnt=np.bincount(rows.group*T+idx,minlength=G*T).reshape(G,T); R=np.bincount(rows.group*T+idx,r,G*T).reshape(G,T)/np.maximum(cnt,1); there=cnt>0
        pats=patterns(there); sd=max(r.std(),1e-3)
        def cost(th):
            th=np.clip(th,-7,4); K,s=kernel(th,u)
            try: return -loglik(K+(s+1e-8)*np.eye(T),R,pats)/G + 0.02*((th-np.log(sd))**2).sum()/G
            except np.linalg.LinAlgError: return 1e6
        x0=np.log([0.5*sd,0.3*sd,0.4*sd,0.7,0.3*sd]) if start is None else start
        th=minimize(cost,x0,method="Nelder-Mead",options={"maxfev":250 if start is None else 80,"xatol":.02,"fatol":1e-3}).x; th=np.clip(th,-7,4)
        K,s=kernel(th,u); S0=K+s*np.eye(T)
        fold=np.random.default_rng(draw.seed).permutation(G)%4; best=(-np.inf,None)
        for nu in (0.5*T+2,T+2,2*T,5*T,20*T,1e6):
            ll=0.
            for f in range(4):
                m=fold!=f
                if not (~m).any() or not m.any(): continue
                S=em(S0,R[m],there[m],nu,6) if nu<1e6 else S0
                ll+=loglik(S,R[~m],patterns(there[~m]))
            if ll>best[0]: best=(ll,nu)
        S=em(S0,R,there,best[1]) if best[1]<1e6 else S0
        w=np.linalg.eigvalsh(S).min(); noise=float(min(s,0.95*w)) if w>0 else 1e-6; noise=max(noise,1e-6)
        fit=FittedPanel(root,j,u,mu,S-noise*np.eye(T),noise,None)
        joined=Joined.of(simulate(rows,draw,3000)); said=fit.said(rows,held,joined); a=joined.asked
        sp=learn_spread(said,rows.y[a],rows.group[a],draw.seed)
        return replace(fit,spread=sp),th

@dataclass(frozen=True)
class SeveralFlips:
    fits: tuple
    def predict(self,tasks):
        said=[f.predict(tasks) for f in self.fits]
        return Forecast(*(np.mean([getattr(s,n) for s in said],axis=0) for n in ("mean","task_variance","noise_variance")))
    def state(self): return {}
@dataclass(frozen=True)
class PriorFlips:
    """mean of three: x, y, both turned round"""
    name: str="prior-flips"
    def suits(self,rows): return PriorFlip().suits(rows)
    def fit_each(self,rows,parts,draw):
        each=[PriorFlip("",y,x).fit_each(rows,parts,draw) for y,x in ((-1.,1.),(1.,-1.),(-1.,-1.))]
        return [SeveralFlips(tuple(f)) for f in zip(*each)]
CANDIDATES=(PriorFlips(),PanelMember(),Logged(PlainMixed(),"mixed-plain-log"),Logged(SmoothMember(),"smooth-log"),ForestMember(),ForestClasses("forest-classes"),PlainMixed(),SmoothMember(),SmoothClasses("smooth-classes"),
 PriorFlip("prior-y"),PriorFlip("prior-x",1.,-1.),PriorFlip("prior-xy",-1.,-1.),
 Logged(SummariesMember(_OTHER),"boosting-summaries-log"),Logged(PriorFew(),"prior-log",True),MixedLogistic("mixed-levels",plain=True))
