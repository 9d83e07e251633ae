//! Medians, geometric means, slopes.

/// The median (the mean of the two middle values of an even number); NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The geometric mean of positive values; NaN for no values.
pub fn geomean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// The least-squares slope through (x, y) and its standard error; both 0 if all x are the same, the
/// error infinite for fewer than three points.
pub fn slope(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|p| p.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|p| p.1).sum::<f64>() / n;
    let over: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    let under: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
    if under <= 0.0 {
        return (0.0, 0.0);
    }
    let slope = over / under;
    if points.len() < 3 {
        return (slope, f64::INFINITY);
    }
    let rest: f64 = points.iter().map(|p| (p.1 - mean_y - slope * (p.0 - mean_x)).powi(2)).sum();
    (slope, (rest / (n - 2.0) / under).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert!(median(&[]).is_nan());
        assert!((median(&[5.0, 1.0, 3.0]) - 3.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-12);
        assert!((geomean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
        assert!(geomean(&[]).is_nan());
        let (line, error) = slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
        assert!((line - 2.0).abs() < 1e-12 && error < 1e-12);
        // By hand: residuals 1/3, -2/3, 1/3; their squares sum to 2/3; over 1 degree and Sxx = 2.
        let (line, error) = slope(&[(0.0, 0.0), (1.0, 0.0), (2.0, 2.0)]);
        assert!((line - 1.0).abs() < 1e-12 && (error - (1.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!(slope(&[(0.0, 0.0), (1.0, 1.0)]).1.is_infinite());
        assert!(slope(&[(1.0, 1.0), (1.0, 3.0)]).0.abs() < 1e-12);
    }
}
