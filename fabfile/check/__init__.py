"""Whether a cluster, or a cloud's account, is fit for a job: what is asked, and the rules that judge the answers."""
