"""ST-MAML in one file of plain jax.numpy, straight from the paper: the reading version of the method.

Nothing of the package is used here. Parameters are a dict of lists of layers, a layer is (weight, bias), and a weight
is stored inputs first:

    theta   the base learner f: body theta_b, all layers but the last; task learner theta_c, the last
    phi     the pair encoder g^Enc
    rho     the layers between r and the two heads: one in the paper, none in the released code
    mu      the linear head of the mean
    sigma   the linear head of the standard deviation
    w       the gate g^Gate
    beta    the map g^In from z to the augmented feature h

Two modes: the paper's equations, and what the authors' released code does on 2D regression. Every function is about
one task with support (x_s, y_s) and query (x_q, y_q). The loss is the squared error, which the paper writes as a
log-likelihood. `eps` is standard normal noise.
"""

import jax
import jax.numpy as jnp


def affine(layer, x):
    weight, bias = layer
    return jnp.einsum("...i,io->...o", x, weight) + jnp.broadcast_to(bias, (*x.shape[:-1], bias.shape[0]))


def mlp(layers, x):
    for layer in layers[:-1]:
        x = jnp.maximum(affine(layer, x), 0)
    return affine(layers[-1], x)


def repeat(row, times):
    return jnp.stack([row] * times)


def f(theta, h, x, h_layer):
    """The base learner: h joins the inputs of layer `h_layer` (eq. 12, trans2: x_hat = [x, h])."""
    for i, layer in enumerate(theta):
        if i == h_layer:
            x = jnp.concatenate([x, repeat(h, len(x))], axis=1)
        x = affine(layer, x)
        if i < len(theta) - 1:
            x = jnp.maximum(x, 0)
    return x


def encode(params, x, y):
    """The distribution of z given a labelled set (eq. 6, zmu; with support and query together eq. 10, postz)."""
    r_j = mlp(params["phi"], jnp.concatenate([x, y], axis=1))  # eq. 7 (encode)
    r = r_j.sum(0) / len(r_j)  # eq. 8 (Rtask)
    for layer in params["rho"]:
        r = jnp.maximum(affine(layer, r), 0)
    spread = jnp.log1p(jnp.exp(affine(params["sigma"], r)))
    return affine(params["mu"], r), 0.1 + 0.9 * spread


def encode_both(params, x_s, y_s, x_q, y_q):
    prior = encode(params, x_s, y_s)
    posterior = encode(params, jnp.concatenate([x_s, x_q]), jnp.concatenate([y_s, y_q]))
    return prior, posterior


def kl(q, p):
    """KL(q || p) of each coordinate of z."""
    (mu_q, sigma_q), (mu_p, sigma_p) = q, p
    return jnp.log(sigma_p / sigma_q) + (sigma_q**2 + (mu_q - mu_p) ** 2) / (2 * sigma_p**2) - 0.5


def squared_error(prediction, y):
    return jnp.mean((prediction - y) ** 2)


def gate(theta, c):
    """[theta_b, sigmoid(c) * theta_c] (eq. 11, trans1): the last weight matrix alone, by input."""
    weight, bias = theta[-1]
    return [*theta[:-1], (weight / (1 + jnp.exp(-c))[:, None], bias)]


def clamp(gradient, limit):
    return jnp.minimum(jnp.maximum(gradient, -limit), limit)


def paper_fine_tune(params, distribution, x_s, y_s, eps, *, steps, lr, limit):
    """[theta_T^K, h_T^K]: the gated weights and h after K steps on the support set."""
    mu, sigma = distribution
    z = mu + sigma * eps
    theta = gate(params["theta"], mlp(params["w"], z))  # eq. 11 (trans1)
    h = mlp(params["beta"], z)  # eq. 12 (trans2)
    knowledge = (theta, h)  # eq. 13 (biggoal)

    def inner_loss(knowledge):  # eq. 16 (inner_loss)
        theta, h = knowledge
        return squared_error(f(theta, h, x_s, 0), y_s)

    for _ in range(steps):  # eq. 17 (inner_update)
        gradient = jax.grad(inner_loss)(knowledge)
        knowledge = jax.tree.map(lambda p, g: p - lr * clamp(g, limit), knowledge, gradient)
    return knowledge


def paper_loss(params, x_s, y_s, x_q, y_q, eps, *, steps, lr, limit, kl_weight):
    """Minus the ELBO (eq. 15, LIB): z is drawn from the posterior."""
    prior, posterior = encode_both(params, x_s, y_s, x_q, y_q)
    theta, h = paper_fine_tune(params, posterior, x_s, y_s, eps, steps=steps, lr=lr, limit=limit)
    return squared_error(f(theta, h, x_q, 0), y_q) + kl_weight * kl(posterior, prior).sum()


def paper_predict(params, x_s, y_s, x_q, eps, *, steps, lr, limit):
    """Meta-testing: z is drawn from the prior."""
    prior = encode(params, x_s, y_s)
    theta, h = paper_fine_tune(params, prior, x_s, y_s, eps, steps=steps, lr=lr, limit=limit)
    return f(theta, h, x_q, 0)


def released_solve(params, theta, z, x_s, y_s):
    """The gated weights and h that z stands for; the gate also reads the support examples."""
    h = mlp(params["beta"], z)
    c = mlp(params["w"], jnp.concatenate([x_s, y_s, repeat(z, len(x_s))], axis=1)).mean(0)
    return gate(theta, c), h


def released_fine_tune(params, distribution, x_s, y_s, eps, *, steps, lr, z_lr, limit):
    """The ungated weights and the mean of z after K steps; z is drawn anew, with row k of `eps`, in each of them."""
    mu, sigma = distribution
    theta = params["theta"]

    def inner_loss(theta, mu, eps):
        gated, h = released_solve(params, theta, mu + sigma * eps, x_s, y_s)
        return squared_error(f(gated, h, x_s, 1), y_s)

    for k in range(steps):
        g_theta, g_mu = jax.grad(inner_loss, argnums=(0, 1))(theta, mu, eps[k])
        theta = jax.tree.map(lambda p, g: p - lr * clamp(g, limit), theta, g_theta)
        mu = mu - z_lr * g_mu
    return released_solve(params, theta, mu + sigma * eps[steps], x_s, y_s), mu


def released_loss(params, x_s, y_s, x_q, y_q, eps, *, steps, lr, z_lr, limit, kl_weight):
    """The KL is that of the moved posterior, averaged over the coordinates of z."""
    prior, posterior = encode_both(params, x_s, y_s, x_q, y_q)
    settings = {"steps": steps, "lr": lr, "z_lr": z_lr, "limit": limit}
    (theta, h), mu = released_fine_tune(params, posterior, x_s, y_s, eps, **settings)
    return squared_error(f(theta, h, x_q, 1), y_q) + kl_weight * kl((mu, posterior[1]), prior).mean()


def released_predict(params, x_s, y_s, x_q, eps, *, steps, lr, z_lr, limit):
    """Meta-testing: the same from the prior."""
    prior = encode(params, x_s, y_s)
    settings = {"steps": steps, "lr": lr, "z_lr": z_lr, "limit": limit}
    (theta, h), _ = released_fine_tune(params, prior, x_s, y_s, eps, **settings)
    return f(theta, h, x_q, 1)
