from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Config:
    interval = 2


class Loop:
    def __init__(self, cfg):
        self.cfg = cfg
        self.fab = Accelerator(gradient_accumulation_steps=2)
        self.net = Model()
        self.sgd = Optimizer(self.net)
        self.net, self.sgd, self.data = self.fab.prepare(self.net, self.sgd, Loader(16))
        self.shadow = EMA(self.net)
        self.it = 0

    def run(self):
        fab = self.fab
        for batch in self.data:
            with fab.accumulate(self.net):
                fab.backward(self.net(batch))
                self.sgd.step()
                self.sgd.zero_grad()
            if not fab.sync_gradients: continue
            self.it += 1
            self.shadow.step(self.net.parameters())
            if self.it % self.cfg.interval == 0: fab.save_state(f"ckpt_{self.it}")
        done(global_step=self.it)


Loop(Config()).run()
