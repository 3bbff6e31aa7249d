package id.hapax.cosid;

import me.ahoo.cosid.IdConverter;
import me.ahoo.cosid.snowflake.SnowflakeId;

/** A generator of CosId that fails once something says that it must. */
record GuardedSnowflakeId(SnowflakeId generator, Runnable guard) implements SnowflakeId {
    @Override
    public long generate() {
        long id = generator.generate();
        guard.run(); // afterwards: a number made before the end is nobody else's, however long that took
        return id;
    }

    @Override
    public long getEpoch() {
        return generator.getEpoch();
    }

    @Override
    public int getTimestampBit() {
        return generator.getTimestampBit();
    }

    @Override
    public int getMachineBit() {
        return generator.getMachineBit();
    }

    @Override
    public int getSequenceBit() {
        return generator.getSequenceBit();
    }

    @Override
    public long getMaxTimestamp() {
        return generator.getMaxTimestamp();
    }

    @Override
    public int getMaxMachineId() {
        return generator.getMaxMachineId();
    }

    @Override
    public long getMaxSequence() {
        return generator.getMaxSequence();
    }

    @Override
    public long getLastTimestamp() {
        return generator.getLastTimestamp();
    }

    @Override
    public int getMachineId() {
        return generator.getMachineId();
    }

    @Override
    public IdConverter idConverter() {
        return generator.idConverter();
    }
}
