"""What is learnt: models, objectives, the loop, evaluation. The top floor."""
