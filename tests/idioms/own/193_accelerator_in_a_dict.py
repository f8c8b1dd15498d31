from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


ctx = {"acc": Accelerator(gradient_accumulation_steps=2)}
model = Model()
opt = ctx["acc"].prepare(Optimizer(model))
n = 0
for batch in Loader(10):
    with ctx["acc"].accumulate(model):
        ctx["acc"].backward(model(batch))
        opt.step()
        opt.zero_grad()
    if ctx["acc"].sync_gradients:
        n += 1
        ctx["acc"].log({"loss": 1.0}, step=n)
done(global_step=n)
