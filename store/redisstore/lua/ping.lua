-- Tries to write.
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
return {'ok'}
