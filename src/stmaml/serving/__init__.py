"""`stmaml serve`: learners behind a JSON interface and a page. Only `app` needs Starlette."""
