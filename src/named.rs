// SPDX-License-Identifier: Apache-2.0
//! Enums whose variants have names: in lines, records, the configuration or on the command line.
//! One list holds the variants and their names. No I/O.

/// An enum with a name for each variant.
pub trait Named: Copy + 'static {
    /// Every variant, in the order of the list.
    const ALL: &'static [Self];

    /// Returns the variant's name.
    fn name(self) -> &'static str;

    /// Returns all names, in the order of the list.
    fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().map(|one| one.name())
    }

    /// Returns the variant of this name.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }
}

/// Defines enums that are [`Named`]: `=> NAME` follows each variant.
macro_rules! named {
    ($(
        $(#[$about:meta])*
        $vis:vis enum $Enum:ident {
            $($(#[$meaning:meta])* $Variant:ident $(= $number:literal)? => $name:literal),+ $(,)?
        }
    )+) => {$(
        $(#[$about])*
        $vis enum $Enum {
            $($(#[$meaning])* $Variant $(= $number)?),+
        }

        impl $Enum {
            /// Returns the variant's name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name),+
                }
            }
        }

        impl $crate::named::Named for $Enum {
            const ALL: &'static [Self] = &[$(Self::$Variant),+];

            fn name(self) -> &'static str {
                Self::name(self)
            }
        }
    )+};
}
pub(crate) use named;
