"""From a table of many shops to predictions for new ones with four known days each. Needs no data, and two minutes."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl

import stmaml

SHOPS, DAYS = 150, 40


def sales(num_shops, name, key):
    """Each shop has its own level, its own gain from a campaign, and the same weekend."""
    level, gain, noise = jr.normal(key, (3, num_shops, DAYS))
    level, gain = 40 + 12 * level[:, :1], 10 + 5 * gain[:, :1]
    campaign = jr.bernoulli(jr.fold_in(key, 1), 0.4, (num_shops, DAYS))
    day = np.tile(np.arange(DAYS), (num_shops, 1))
    sold = level + gain * campaign + 8 * jnp.sin(2 * jnp.pi * day / 7) + 2 * noise
    return pl.DataFrame(
        {
            "shop": np.repeat([f"{name} {i}" for i in range(num_shops)], DAYS),
            "date": (np.datetime64("2024-03-04") + day.ravel()).astype(str),
            "campaign": np.where(np.ravel(campaign), "yes", "no"),
            "sold": np.ravel(sold),
        }
    )


table = sales(SHOPS, "shop", jr.key(0))
features = ["date", "campaign"]
model = stmaml.FewShotRegressor(method="st-maml", steps=600)
model.meta_fit(table.select(features), table["sold"], groups=table["shop"])

new = sales(20, "new shop", jr.key(1))
errors, inside = [], []
for number, shop in enumerate(new.partition_by("shop", maintain_order=True)):
    is_known = np.arange(DAYS) % 10 == 0
    known, asked = shop.filter(is_known), shop.filter(~is_known)
    model.fit(known.select(features), known["sold"])
    mean, std = model.predict(asked.select(features), return_std=True)
    low, high = model.predict_quantiles(asked.select(features), [0.1, 0.9]).T
    sold = asked["sold"].to_numpy()
    errors.append(np.square(mean - sold))
    inside.append((low <= sold) & (sold <= high))
    for row in range(5) if number == 0 else ():
        print(f"{asked['date'][row]}  sold {sold[row]:5.1f}  predicted {mean[row]:5.1f} ± {std[row]:.1f}")
print(f"20 new shops: typical error {np.sqrt(np.mean(errors)):.2f}, of which chance is 2.00")
print(f"{np.mean(inside):.0%} of the days lie in their 80 % interval")
