"""Executor ``ray``: workers that Ray places, as actors; the calls travel over our own transport."""
