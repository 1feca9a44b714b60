//! How hot an extent is: a count of accesses that is halved each time that the volume has been
//! accessed so often. Instead of all counts falling, the weight of an access rises, so nothing is
//! ever aged by a walk; and only plain arithmetic is used, so a seed is one world on every machine.

/// Extents that are scaled at a time.
const CHUNK: usize = 1024;
/// The weight is brought back by this when it has grown to it.
const SCALE: f64 = (1_u64 << 62) as f64;

/// How hot one extent is, in units of its chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Temperature(f32);

impl Temperature {
    pub const COLD: Temperature = Temperature(0.0);
}

/// Where temperatures lie.
pub(crate) trait Warm {
    fn temperature(&mut self, index: usize) -> &mut Temperature;
}

/// The owner of the weight.
#[derive(Debug)]
pub(crate) struct Heat {
    /// What an access counts now.
    weight: f64,
    /// By how much that grows with each access.
    growth: f64,
    /// How often the weight was brought back, and how often each chunk has followed.
    scale: u32,
    scales: Vec<u32>,
    extents: usize,
}

impl Heat {
    pub fn new(extents: u32) -> Heat {
        let chunks = (extents as usize).div_ceil(CHUNK);
        Heat {
            weight: 1.0,
            growth: 1.0,
            scale: 0,
            scales: vec![0; chunks],
            extents: extents as usize,
        }
    }

    pub fn grow(&mut self, extents: u32) {
        self.extents = extents as usize;
        self.scales.resize((extents as usize).div_ceil(CHUNK), self.scale);
    }

    /// 2^(1/accesses), by the first terms of its series: the same on every machine.
    pub fn set_half_life(&mut self, accesses: f64) {
        let x = std::f64::consts::LN_2 / accesses.max(1.0);
        self.growth = 1.0 + x + x * x / 2.0 + x * x * x / 6.0 + x * x * x * x / 24.0;
    }

    fn follow(&mut self, extents: &mut impl Warm, chunk: usize) {
        let behind = self.scale - self.scales[chunk];
        if behind == 0 {
            return;
        }
        let factor = if behind == 1 { (1.0 / SCALE) as f32 } else { 0.0 };
        for index in chunk * CHUNK..((chunk + 1) * CHUNK).min(self.extents) {
            extents.temperature(index).0 *= factor;
        }
        self.scales[chunk] = self.scale;
    }

    pub fn touch(&mut self, extents: &mut impl Warm, extent: u32, accesses: f32) {
        self.follow(extents, extent as usize / CHUNK);
        extents.temperature(extent as usize).0 += (f64::from(accesses) * self.weight) as f32;
        self.weight *= self.growth;
        if self.weight >= SCALE {
            self.weight /= SCALE;
            self.scale += 1;
        }
    }

    pub fn set(&mut self, extents: &mut impl Warm, extent: u32, heat: f32) {
        self.follow(extents, extent as usize / CHUNK);
        extents.temperature(extent as usize).0 = (f64::from(heat) * self.weight) as f32;
    }

    /// How hot, in accesses of now.
    pub fn now(&self, temperature: &Temperature, extent: u32) -> f32 {
        let behind = self.scale - self.scales[extent as usize / CHUNK];
        let weight = match behind {
            0 => self.weight,
            1 => self.weight * SCALE,
            _ => return 0.0,
        };
        (f64::from(temperature.0) / weight) as f32
    }

    /// As seven bits, four to the octave: 64 is one access.
    pub fn level(&self, temperature: &Temperature, extent: u32) -> u8 {
        let heat = self.now(temperature, extent);
        if heat <= 0.0 {
            return 0;
        }
        let quarters = (heat.to_bits() >> 21) as i32 - (127 << 2);
        (64 + quarters).clamp(1, 127) as u8
    }

    /// The heat that a level stands for.
    pub fn of_level(level: u8) -> f32 {
        let level = i32::from(level & 0x7f);
        if level == 0 {
            return 0.0;
        }
        f32::from_bits(((level - 64 + (127 << 2)) as u32) << 21)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Warm for Vec<Temperature> {
        fn temperature(&mut self, index: usize) -> &mut Temperature {
            &mut self[index]
        }
    }

    #[test]
    fn a_count_is_halved_after_a_half_life_and_nothing_overflows() {
        let mut heat = Heat::new(3000);
        let mut all = vec![Temperature::COLD; 3000];
        heat.set_half_life(100.0);
        for _ in 0..64 {
            heat.touch(&mut all, 1, 1.0);
        }
        let before = heat.now(&all[1], 1);
        for _ in 0..100 {
            heat.touch(&mut all, 2500, 1.0);
        }
        let after = heat.now(&all[1], 1);
        assert!((after / before - 0.5).abs() < 0.01, "{before} {after}");
        for _ in 0..100_000 {
            heat.touch(&mut all, 2500, 1.0);
        }
        // A steady access has as many counts as fit its half-life: 100 / ln 2.
        let steady = heat.now(&all[2500], 2500);
        assert!((steady - 144.7).abs() < 2.0, "{steady}");
        assert_eq!(heat.now(&all[1], 1), 0.0);
    }

    #[test]
    fn levels_are_four_to_the_octave() {
        let mut heat = Heat::new(1);
        let mut all = vec![Temperature::COLD; 1];
        for level in 1..128 {
            heat.set(&mut all, 0, Heat::of_level(level));
            assert_eq!(heat.level(&all[0], 0), level);
        }
        assert_eq!(Heat::of_level(64), 1.0);
        assert_eq!(Heat::of_level(68), 2.0);
    }
}
