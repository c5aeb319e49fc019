"""From a table of many shops to predictions for a new one with four known days. Needs no data and about a minute."""

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

new = sales(1, "new shop", jr.key(1))
known, asked = new[:4], new[4:]
model.fit(known.select(features), known["sold"])
mean, std = model.predict(asked.select(features), return_std=True)
low, high = model.predict_quantiles(asked.select(features), [0.1, 0.9]).T
inside = np.mean((low <= asked["sold"].to_numpy()) & (asked["sold"].to_numpy() <= high))
error = np.sqrt(np.mean((mean - asked["sold"].to_numpy()) ** 2))
for row in range(5):
    print(f"{asked['date'][row]}  sold {asked['sold'][row]:5.1f}  predicted {mean[row]:5.1f} ± {std[row]:.1f}")
print(f"typical error {error:.1f}; {inside:.0%} of the days lie in their 80 % interval")
