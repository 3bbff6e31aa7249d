package tinyid

// InACluster has a Store take no locks, as where its databases are those of a Galera cluster.
func InACluster(s *Store) { s.galera = true }
